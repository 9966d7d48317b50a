"""How often a lost race is run again before the caller is told that there is too much going on."""

ATTEMPTS = 100
