"""When an exchange starts, and how many steps later its result is applied."""
