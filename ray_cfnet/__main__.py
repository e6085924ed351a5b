"""`python -m ray_cfnet` is the command line."""

from ray_cfnet.cli import main

main()
