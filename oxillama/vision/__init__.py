"""Images for language models: read and checked (`reading`, `integrity`), turned into pixels as in
each family's reference (`processors`, and a file per family in `families/`), laid out as patches
(`layout`), and encoded (`encoder`).
"""

from oxillama.vision.encoder import Vision as Vision
from oxillama.vision.reading import ImageLimits as ImageLimits
from oxillama.vision.reading import read_image as read_image
