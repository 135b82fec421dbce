"""Jobs worked at in processes of their own, any of which may be killed at any moment.

Reading order: job (what is asked of one), worker (the process), locks (who is at work), threads
(its share of the cores), executors and on_ray (many of them at a time).
"""
