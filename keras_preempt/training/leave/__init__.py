"""How a process leaves: after a notice, or by an error."""
