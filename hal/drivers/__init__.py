"""One driver a device family; each is imported when it is first asked for."""
