"""For `ray job submit --working-dir . -- python jobs/nightly.py --config conf/ours.yaml ...`"""

import sys

from ray_cfnet.cli import main

main(["nightly", *sys.argv[1:]])
