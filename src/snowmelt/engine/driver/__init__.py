"""What a driver is made of, and how it boots; its loop is `engine.loop`."""
