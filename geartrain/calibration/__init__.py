"""Constants of a cluster by measurement: what is measured on its ranks, what is fitted to it, the file that says so."""
