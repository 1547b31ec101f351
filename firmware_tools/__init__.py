"""Box tools: images, bundles, flashing, slots and updates."""
