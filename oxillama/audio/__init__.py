"""Audio for language models: read, checked and brought to the encoder's sampling rate (`reading`,
`integrity`), turned into a spectrogram of logarithms (`spectrogram`, over the arithmetic of
`portable_math`), cut into windows as in each family's reference (`processors`, and a file per
family in `families/`), and encoded (`encoder`).
"""

from oxillama.audio.encoder import Hearing as Hearing
from oxillama.audio.reading import AudioLimits as AudioLimits
from oxillama.audio.reading import read_audio as read_audio
