"""Missing capacity: pools of nodes that an autoscaler can grow, and how many more of their nodes would serve."""
