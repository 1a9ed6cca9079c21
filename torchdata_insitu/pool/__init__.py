"""What is resident in memory: chunk sources, arenas, leases and the byte budget."""
