"""What an agent finds out about its site: whether Ray is alive, what it has, what the declared data
hold.
"""
