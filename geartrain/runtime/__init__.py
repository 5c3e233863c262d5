"""The contracts: `Context`, `Strategy`, `Worker`, `Service`, `Task`; and the loop that drives them."""
