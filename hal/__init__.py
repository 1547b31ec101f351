"""Device abstraction: what a device is (`base`), which ones this box has (`registry`), and a driver for each family."""
