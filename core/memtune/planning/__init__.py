"""Which plan to try: the search space, the downgrade ladder, advice, and the next probe."""
