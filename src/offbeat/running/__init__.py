"""What both drivers (simulator and deployment) share: their interface, the loop, accounts and the run directory."""
