"""A thin asynchronous client of the Kubernetes API, and the election of one leader over it."""
