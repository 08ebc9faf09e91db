"""``keras-preempt doctor``: finds out before the first night what would lose work."""
