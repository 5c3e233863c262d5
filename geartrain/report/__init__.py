"""`report.html`: what runs left in their folders as one page that needs nothing else, on a screen, a phone or paper."""
