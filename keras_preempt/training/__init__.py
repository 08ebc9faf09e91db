"""One fit or loop in one process: begin, boundary, save, leave."""
