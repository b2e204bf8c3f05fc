"""What the simulator and a deployment share: the contract of a driver, the loop around it, the run directory."""
