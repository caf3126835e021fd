"""`python -m mcnn_ray` is `mcnn`."""

from mcnn_ray.cli import main

main()
