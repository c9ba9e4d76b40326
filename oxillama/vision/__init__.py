"""Images for language models: read and checked (`reading`, `whole`), found in messages
(`messages`), turned into pixels as in each family's reference (`processors`, and a file per family
in `families/`), laid out as patches (`layout`), encoded (`encoder`) into `features`, and `placed`
among the tokens of a session.
"""

from oxillama.vision.encoder import Vision as Vision
from oxillama.vision.features import ImageFeatures as ImageFeatures
from oxillama.vision.reading import ImageLimits as ImageLimits
from oxillama.vision.reading import read_image as read_image
