"""Closed forms: what computing and communicating takes, in seconds and bytes, without running anything."""
