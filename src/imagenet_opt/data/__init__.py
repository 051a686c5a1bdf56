"""Where samples come from and how they become a batch on the device."""
