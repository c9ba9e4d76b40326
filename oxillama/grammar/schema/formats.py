"""The string formats that are enforced, each as a regular expression over the whole string.

Sources: RFC 3339 (dates, times, durations), RFC 4122 (UUID), RFC 5321 (mail addresses: dot-string
local parts), RFC 1123 (host names), RFC 2673 and 4291 (addresses), RFC 3986, 3987 and 6570 (URIs,
IRIs, templates), RFC 6901 (JSON pointers). Where a rule is not worth an exact automaton the
expression accepts less, never more: leap seconds are left out, as are encoded host names
(`xn--...`); where members are named by hosts, a host has fewer labels the longer those are. Formats
not listed here are annotations, as the standard says.
"""

import functools

from oxillama.grammar.regex import parse_regex
from oxillama.grammar.regular import Dfa

DAYS = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE = rf"(?:\d{{4}}-{DAYS}|{LEAP_YEAR}-02-29)"
TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,12})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
CLOCK = r"(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
DURATION = rf"P(?:(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)(?:T{CLOCK})?|T{CLOCK}|\d+W)"
UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"


def _labels(longest: int, most: str) -> str:
    """So many host name labels of up to `longest` characters; "--" in third place is for encoded
    names (RFC 5890), left out.
    """
    ends = [f"(?:[A-Za-z0-9-]{{0,{longest - k}}}[A-Za-z0-9])?" for k in (4, 5)]
    label = (
        f"[A-Za-z0-9](?:[A-Za-z0-9]|[A-Za-z0-9-](?:[A-Za-z0-9]{ends[0]}|-[A-Za-z0-9]{ends[1]}))?"
    )
    return rf"{label}(?:\.{label}){most}"


HOSTNAME = _labels(63, "*")
DOT_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,40}[A-Za-z0-9])?"
EMAIL = rf"{DOT_ATOM}@{LABEL}(?:\.{LABEL}){{0,4}}"
OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
IPV4 = rf"{OCTET}(?:\.{OCTET}){{3}}"
H16 = r"[0-9A-Fa-f]{1,4}"
LS32 = rf"(?:{H16}:{H16}|{IPV4})"
IPV6 = (
    "(?:"
    + "|".join(
        [
            rf"(?:{H16}:){{6}}{LS32}",
            rf"::(?:{H16}:){{5}}{LS32}",
            rf"(?:{H16})?::(?:{H16}:){{4}}{LS32}",
            rf"(?:(?:{H16}:){{0,1}}{H16})?::(?:{H16}:){{3}}{LS32}",
            rf"(?:(?:{H16}:){{0,2}}{H16})?::(?:{H16}:){{2}}{LS32}",
            rf"(?:(?:{H16}:){{0,3}}{H16})?::{H16}:{LS32}",
            rf"(?:(?:{H16}:){{0,4}}{H16})?::{LS32}",
            rf"(?:(?:{H16}:){{0,5}}{H16})?::{H16}",
            rf"(?:(?:{H16}:){{0,6}}{H16})?::",
        ]
    )
    + ")"
)
ESCAPED = r"%[0-9A-Fa-f]{2}"
# RFC 3987: what an IRI allows beyond ASCII (astral planes left out)
BEYOND = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"


def _references(more: str) -> tuple[str, str]:
    """RFC 3986's URI and relative reference, unreserved characters widened by `more`."""
    free = "A-Za-z0-9._~" + more
    pchar = rf"(?:[{free}!$&'()*+,;=:@-]|{ESCAPED})"
    host = (
        rf"(?:\[(?:{IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\]"
        rf"|(?:[{free}!$&'()*+,;=-]|{ESCAPED})*)"
    )
    authority = rf"(?:(?:[{free}!$&'()*+,;=:-]|{ESCAPED})*@)?{host}(?::\d*)?"
    tail = rf"(?:\?(?:{pchar}|[/?])*)?(?:#(?:{pchar}|[/?])*)?"
    rooted = rf"//{authority}(?:/{pchar}*)*|/(?:{pchar}+(?:/{pchar}*)*)?"
    first = rf"(?:[{free}!$&'()*+,;=@-]|{ESCAPED})+"
    return (
        rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{rooted}|{pchar}+(?:/{pchar}*)*|){tail}",
        rf"(?:{rooted}|{first}(?:/{pchar}*)*|){tail}",
    )


URI, RELATIVE = _references("")
IRI, RELATIVE_IRI = _references(BEYOND)
VARIABLE = rf"(?:[A-Za-z0-9_]|{ESCAPED})(?:\.?(?:[A-Za-z0-9_]|{ESCAPED}))*(?::[1-9]\d{{0,3}}|\*)?"
TEMPLATE = (
    rf"(?:[!#$&(-;=?-\[\]_a-z~{BEYOND}]|{ESCAPED}|\{{[+#./;?&=,!@|]?{VARIABLE}(?:,{VARIABLE})*\}})*"
)
POINTER = r"(?:/(?:[^~/]|~[01])*)*"
# Expressions with one level of groups: simple atoms, classes, escapes and quantifiers (a sound part
# of ECMA-262's grammar).
ATOM = (
    r"(?:[^\\^$.*+?()\[\]{}|]|\.|\\[dDwWsStnrfv^$\\.*+?()\[\]{}|/-]"
    r"|\[\^?(?:a-z|A-Z|0-9|1-9|a-f|A-F|[^\\\]\[^-]|\\[dDwWsS\]\\^-])+\])"
)
QUANTIFIED = rf"{ATOM}(?:[*+?]\??|\{{\d{{1,3}}\}})?"
BRANCH = rf"\^?(?:{QUANTIFIED})*\$?"
GROUPED = rf"(?:{QUANTIFIED}|\((?:\?:)?(?:{QUANTIFIED})*(?:\|(?:{QUANTIFIED})*)*\)[*+?]?)*"
REGEX = rf"(?:{BRANCH}(?:\|{BRANCH})*|\^?{GROUPED}\$?)"

FORMATS: dict[str, str] = {
    "date": DATE,
    "time": TIME,
    "date-time": rf"{DATE}[Tt]{TIME}",
    "duration": DURATION,
    "uuid": UUID,
    "email": EMAIL,
    "hostname": HOSTNAME,
    "ipv4": IPV4,
    "ipv6": IPV6,
    "uri": URI,
    "uri-reference": f"(?:{URI}|{RELATIVE})",
    "iri": IRI,
    "iri-reference": f"(?:{IRI}|{RELATIVE_IRI})",
    "uri-template": TEMPLATE,
    "json-pointer": POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{POINTER})",
    "regex": REGEX,
}

# The most characters of a format, where its expression does not say so; and expressions of texts
# that are never longer, with fewer labels the longer they are, for where nothing can be counted.
LONGEST = {"hostname": 253}
SHORTER = {
    "hostname": f"(?:{_labels(63, '{0,2}')}|{_labels(31, '{0,6}')}|{_labels(14, '{0,15}')})",
}


def format_pattern(name: str) -> str | None:
    """The anchored expression of a format, or None for one that is an annotation."""
    body = FORMATS.get(name)
    return None if body is None else f"^(?:{body})$"


@functools.lru_cache(maxsize=32)
def format_automaton(name: str) -> Dfa:
    """The automaton of an enforced format."""
    return parse_regex(FORMATS[name]).automaton(search=False)


@functools.lru_cache(maxsize=4)
def shorter_automaton(name: str) -> Dfa:
    """One automaton of a format in `LONGEST` whose texts are all within its length."""
    return parse_regex(SHORTER[name]).automaton(search=False)
