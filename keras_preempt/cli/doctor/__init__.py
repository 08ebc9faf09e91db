"""``keras-preempt doctor``: finds what would lose work before the job is started."""
