"""Sets of characters by name, as regular expressions have them: the categories of Unicode that
words are cut by, white space, digits, and the Han script. Made by tools/make_unicode_sets.py.
"""

from __future__ import annotations

from functools import cache

# The categories of all code points in order: how many (1 unless said), then which, "-" for those
# that no set holds.
_CATEGORIES = """
33-3PS6PS4P10N2P3S2P26u3PSPS26lPSPS34-P5SP2SoPS-4S2NSl2PSNoP3NP23uS7u24lS8lululululululululululululu
lululululululululululululululu2lulululululululu2lululululululululululululululululululululululul2ulul
u3l2ulul2ul3u2l4ul2ul3u3l2ul2ululul2ulu2lul2ul3ulul2u2lou3l4outlutlutlulululululululu2lululululululu
lulu2lutlul3ulululululululululululululululululululululululululululululu7l2ul2u2lul4ululululu69lo27l
18m4S12m14S5m7SmSm17S112MululmSul2-m3lPu4-2SuP3u-u-2ul17u-9u35lu2l3u3lulululululululululululu5lulSul
2u2l51u48lulululululululululululululululululS7Mululululululululululululululululululululululululululu
l2ululululululu2lulululululululululululululululululululululululululululululululululululululululululu
lulululululul-38u2-m6P41l2P2-3S-45MPMP2MP2MPM8-27o4-4o2P17-3S2PS2P2S11MP-3P32om10o21M10N4P2oM99oPo7M
-S6M2m2MS4M2o10N3o2So14P2-oM30o27M2-89o11Mo14-10N33o9M2mS3Pm2-M2S22o4Mm9Mm3Mm5M2-15P-25o3M2-P-11o5-
24oS6o8-9M41om24M-33M54o3Mo18Mo7M10o2M2P10NPm15o3M-8o2-2o2-22o-7o-o3-4o2-Mo7M2-2M2-3Mo8-M4-2o-3o2M2-
10N2o2S6N2SoPM2-3M-6o4-2o2-22o-7o-2o-2o-2o2-M-5M4-2M2-3M3-M7-4o-o7-10N2M3oMP10-3M-9o-3o-22o-7o-2o-5o
2-Mo8M-3M-3M2-o15-2o2M2-10NPS7-o6M-3M-8o2-2o2-22o-7o-2o-5o2-Mo7M2-2M2-3M7-3M4-2o-3o2M2-10NSo6N10-Mo-
6o3-3o-4o3-2o-o-2o3-2o3-3o3-12o4-5M3-3M-4M2-o6-M14-13N8S5-5M8o-3o-23o-16o2-Mo7M-3M-4M7-2M-3o2-o2-2o
2M2-10N7-P7NSo3MP8o-3o-23o-10o-5o2-Mo7M-3M-4M7-2M6-2o-2o2M2-10N-2oM12-4M9o-3o-41o2Mo7M-3M-4MoS4-3oM
7N3o2M2-19NS6o-3M-18o3-24o-9o-o2-7o3-M4-6M-M-8M6-10N2-2MP12-48oM2o7M4-S6om8MP10N2P37-2o-o-5o-24o-o-
10oM2o9Mo2-5o-m-7M-10N2-4o32-o3S15PSP3S2M6S20NSMSMSM4P2M8o-36o4-20MP2M5o11M-36M-8SM6S-2S5P4S2P37-43o
20Mo10N6P6o4M4o3Mo3M2o7M3o4M13o12MoM10N4M2S38u-u5-u2-43lPm3l329o-4o2-7o-o-4o2-41o-4o2-33o-4o2-7o-o-
4o2-15o-57o-4o2-67o2-3M9P20N3-16o10S6-86u2-6l2-P620oSP17o-26o2P3-75o3P3N8o7-18o4M9-19o3M2P9-18o2M12-
13o-3o-2M12-52o32M3Pm3PSoM2-10N6-10N6-11P3M-M10N6-35om53o7-5o2M34oMo5-70o10-31o-12M4-12M4-S3-2P10N
30o2-5o11-44o4-26o6-11N3-34S23o5M2-2P53o10M-29M2-M10N6-10N6-7Pm6P2-31M49-5M47o17M8o-2P10N7P10S9M9S3P
3M30o13M2o10N44o14M8-4P36o20M3-5P10N3-3o10N30o6m2P9lul5-43u2-3u8P8-3MP21M4oM6oM2o3Mo5-44l63m13lm34l
37m64Mululululululululululululululululululululululululululululululululululululululululululululululul
ulululululululululululululululululululululululululululu9lulululululululululululululululululululululu
lululululululululululululululululululululululululululu9l8u6l2-6u2-8l8u8l8u6l2-6u2-8l-u-u-u-u8l8u14l
2-8l8t8l8t8l8t5l-2l4utSl3S3l-2l4ut3S4l2-2l4u-3S8l5u3S2-3l-2l4ut2S17-24P8-20PS13PS12P17-Nm2-6N3S2Pm
10N3S2P-13m3-33S15-33M15-2Su4Su2Sl3u2l3ulSu3S5u6SuSuSuS4uSl4ul4ol2S2l2u5Su4l4SlS51Nul5N2S4-376S4P29S
2P255S22-11S21-60N78S22N616S14P30N49S2P31S10P403S22P63S4P32S2P374S2-32S-105S48u48lul3u2lululul4ulu2l
u6l2m3ululululululululululululululululululululululululululululululululululululululululululululululul
ululu2l6Sulul3Mul5-4PN2P38l-l5-l2-56o7-mP14-M23o9-7o-7o-7o-7o-7o-7o-7o-7o-32M47Pm32P2S12P34-26S-89S
12-214S26-16S-3PSmoN10P2S12PS9N6MP5m2S3NmoP2S-86o2-2M2S2moP90oP3mo5-43o-94o-2S4N10S32o38S9-S16o31S-
10N30S8NS15N32S10N39S15N320S6592o64S21013om1143o3-55S9-40o6m2P268om3P16o10N2o20-ulululululululululul
ulululululululululululululo4MP10MPmulululululululululululululul2m2M70o10N2M6P8-23S9m2Sululululululu
3lulululululululululululululululululululululululululululululululm8lulul2ulululululm2Sululoulu3lululu
lululululululul5ul5ulululululululul4ulul2ul2-ul-l-lulululu21-3mulo2ml7oM3oM4oM23o5M4SM3-6N4S6-52o4P
8-2M50o18M8-2P10N6-18M6o3PoP2oM10N28o8M2P23o13M11-P29o3-4M47o14M13P-m10N4-2P5oMm9o10N5o-41o14M9-3oM
8o2M2-10N2-4P16om6o3So3M50oMo3M2o2M5o2MoMo24-2om2P11o5M2Po2m2M10-6o2-6o2-6o9-7o-7o-43lS4m9lm2S4-80l
35o8MP2M2-10N6-11172o12-23o4-49o8452-366o2-106o38-7l12-5l5-oM10oS13o-5o-o-2o-2o-108o17S16-363o2P16S
64o2-54o7-S32-12o4S16M10P6-16M35P-14PSP3S-PS2P4-5o-135o4-3PS6PS4P10N2P3S2P26u3PSPS26lPSPS7P10om45o2m
31o3-6o2-6o2-6o2-3o3-7S-7S13-2S2-12o-26o-19o-2o-15o2-14o34-123o5-3P4-45N3-9S57N17S2N3S-13S3-S47-45SM
130-29o3-49o15-M27N4-32o4N9-20oN8oN5-38o5M5-30o-P36o4-8oP5N42-40u40l78o2-10N6-36u4-36l4-40o8-52o11-P
11u-15u-7u-2u-11l-15l-7l-2l3-52o12-311o9-22o10-8o24-6m-42m-9m69-6o2-o-44o-2o3-o2-23o-P8N23o2S7N31o8-
9N48-19o-2o5-5N22o6N3-P26o5-P64-56o4-2N2o16N2-46No3M-2M5-4M4o-3o-29o2-3M4-M9N7-9P7-29o2NP29o3N32-8oS
28o2M4-5N7P9-54o3-7P22o2-8N19o5-8N18o7-4P12-7N80-73o55-51u13-51l7-6N36o4M8-10N6-10N4omo22u3-5MPm22l
8-2S208-31N-42o-2MP2-2o16-3o55-4M29o10No8-22o11M4N5P22-18o4M4P38-21o7N20-23o9-3M53o15M7P4-30NM2o2Mo
9-4M45o11M2P-4PM13-25o7-10N6-3M36o14M-10N4Po2Mo8-35oM2Po9-3M48o14M4o4P4MP2M10NoPo3P-20N11-18o-25o12M
6PM2oM62-7o-o-4o-15o-10oP6-47o12M5-10N6-4M-8o2-2o2-22o-7o-2o-5o-2Mo7M2-2M2-3M2-o6-M5-5o2M2-7M3-5M11-
10o-o2-o-38o-o9M-M2-M-4M-5MoMo2P-2P8-2M29-53o18M4o5P10N2P-PM3o30-48o20M2oPo8-10N166-47o7M2-9M23P4o2M
34-48o17M3Po11-10N6-13P19-43o13MoP6-10N6-20N28-27o2-15M4-12N3PS7o185-44o15MP100-32u32l19N12-8o2-o2-
8o-2o-24o6M-2M2-4MoMo2M3P9-10N70-8o2-39o7M2-7MoPoM27-o10M40o7Mo4M8PM8-o11M46o16M3Po5P13-73o7-10P182-
33oP14-10N6-9o-37o8M-8Mo5P10-29N3-2P30o2-22M-14M73-7o-2o-38o6M3-M-2M-7MoM8-10N6-6o-2o-32o5M-2M-5Mo7-
10N310-19o4M2P7-2MoM13o-34o7M3-5M13P10NM85-o15-21N29S13-P922o102-111N-5P11-196o2636-97o2P13-1072o16-
M6o15M10-3995o5-583o6841-30o18M10N1734-569o7-31o-10N4-2P79o-10N6-30o2-5MP10-48o7M5P4S4mPS10-10N-7N-
21o5-19o432-3m40o2m3P10N198-32u32l23N4P101-75o4-Mo55M7-4M13m64-2mPmM11-2M14-6136o8-1238o41-10o8935-
4m-7m-2m-291o15-o29-3o2-o14-4o8-396o2308-107o5-13o3-9o7-10o2-S2MP3936-240S10N6-436S76-46M2-23M9-116S
60-246S10-39S2-60S5M3S6M8-8M2S7M30S4M61S21-66S3MS122-20N12-20N12-87S9-25N135-26u26l26u7l-18l26u26lu-
2u2-u2-2u2-4u-8u4l-l-7l-11l26u26l2u-4u2-8u-7u-26l2u-4u-5u-u3-7u-26l26u26l26u26l26u26l26u26l26u26l26u
28l2-25uS25lS6l25uS25lS6l25uS25lS6l25uS25lS6l25uS25lS6lul2-50N512S55M4S50M8SM14SM2S5P15-5M-15M1104-
10lo20l6-6l213-7M-17M2-7M-2M-5M5-62m33-M112-45o3-7M7m2-10N4-oS320-30oM17-44o4M10N5-S464-27om4M10N
214-30o2Mo10N4-P480-7o-4o-2o-15o-197o2-9N7M41-34u34l7Mm4-10N4-2P785-59NS3NS4N76-45NS15N194-4o-27o-2o
-o2-o-10o-4o-o-o6-o4-o-o-o-3o-2o-o2-o-o-o-o-o-2o-o2-4o-7o-4o-4o-o-10o-17o5-3o-5o-17o52-2S270-44S4-
100S12-15S2-15S-15S-37S10-13N161S56-29S13-44S4-9S7-2S14-6S154-984S4-17S3-13S3-119S4-95S6-12S4-S15-
12S4-56S8-10S6-40S8-30S2-12S4-2S62-340S12-14S2-13S3-10S5-56S7-15S2-11S6-9S7-147S-92S10N1030-42720o
32-4154o6-222o2-5762o14-7473o15-622o2466-542o1506-4939o5-4192o712016-240M196112-
"""
_CODES = {"Lu": "u", "Ll": "l", "Lt": "t", "Lm": "m", "Lo": "o", "L": "ultmo"}
_SPACE = (
    (0x0009, 0x000D),
    (0x0020, 0x0020),
    (0x0085, 0x0085),
    (0x00A0, 0x00A0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
_DIGITS = (
    (0x0030, 0x0039),
    (0x0660, 0x0669),
    (0x06F0, 0x06F9),
    (0x07C0, 0x07C9),
    (0x0966, 0x096F),
    (0x09E6, 0x09EF),
    (0x0A66, 0x0A6F),
    (0x0AE6, 0x0AEF),
    (0x0B66, 0x0B6F),
    (0x0BE6, 0x0BEF),
    (0x0C66, 0x0C6F),
    (0x0CE6, 0x0CEF),
    (0x0D66, 0x0D6F),
    (0x0DE6, 0x0DEF),
    (0x0E50, 0x0E59),
    (0x0ED0, 0x0ED9),
    (0x0F20, 0x0F29),
    (0x1040, 0x1049),
    (0x1090, 0x1099),
    (0x17E0, 0x17E9),
    (0x1810, 0x1819),
    (0x1946, 0x194F),
    (0x19D0, 0x19D9),
    (0x1A80, 0x1A89),
    (0x1A90, 0x1A99),
    (0x1B50, 0x1B59),
    (0x1BB0, 0x1BB9),
    (0x1C40, 0x1C49),
    (0x1C50, 0x1C59),
    (0xA620, 0xA629),
    (0xA8D0, 0xA8D9),
    (0xA900, 0xA909),
    (0xA9D0, 0xA9D9),
    (0xA9F0, 0xA9F9),
    (0xAA50, 0xAA59),
    (0xABF0, 0xABF9),
    (0xFF10, 0xFF19),
    (0x104A0, 0x104A9),
    (0x10D30, 0x10D39),
    (0x10D40, 0x10D49),
    (0x11066, 0x1106F),
    (0x110F0, 0x110F9),
    (0x11136, 0x1113F),
    (0x111D0, 0x111D9),
    (0x112F0, 0x112F9),
    (0x11450, 0x11459),
    (0x114D0, 0x114D9),
    (0x11650, 0x11659),
    (0x116C0, 0x116C9),
    (0x116D0, 0x116E3),
    (0x11730, 0x11739),
    (0x118E0, 0x118E9),
    (0x11950, 0x11959),
    (0x11BF0, 0x11BF9),
    (0x11C50, 0x11C59),
    (0x11D50, 0x11D59),
    (0x11DA0, 0x11DA9),
    (0x11F50, 0x11F59),
    (0x16130, 0x16139),
    (0x16A60, 0x16A69),
    (0x16AC0, 0x16AC9),
    (0x16B50, 0x16B59),
    (0x16D70, 0x16D79),
    (0x1CCF0, 0x1CCF9),
    (0x1D7CE, 0x1D7FF),
    (0x1E140, 0x1E149),
    (0x1E2F0, 0x1E2F9),
    (0x1E4F0, 0x1E4F9),
    (0x1E5F1, 0x1E5FA),
    (0x1E950, 0x1E959),
    (0x1FBF0, 0x1FBF9),
)
# what `\w` has besides letters, marks and digits
_WORD_SIGNS = (
    (0x005F, 0x005F),
    (0x00B2, 0x00B3),
    (0x00B9, 0x00B9),
    (0x00BC, 0x00BE),
    (0x16EE, 0x16F0),
    (0x203F, 0x2040),
    (0x2054, 0x2054),
    (0x2160, 0x2182),
    (0x2185, 0x2188),
    (0x24B6, 0x24E9),
    (0x3007, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303A),
    (0xA6E6, 0xA6EF),
    (0xFE33, 0xFE34),
    (0xFE4D, 0xFE4F),
    (0xFF3F, 0xFF3F),
    (0x10140, 0x10174),
    (0x10341, 0x10341),
    (0x1034A, 0x1034A),
    (0x103D1, 0x103D5),
    (0x12400, 0x1246E),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)
_HAN = (
    (0x2E80, 0x2E99),
    (0x2E9B, 0x2EF3),
    (0x2F00, 0x2FD5),
    (0x3005, 0x3005),
    (0x3007, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFA6D),
    (0xFA70, 0xFAD9),
    (0x16FE2, 0x16FE3),
    (0x16FF0, 0x16FF1),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B739),
    (0x2B740, 0x2B81D),
    (0x2B820, 0x2CEA1),
    (0x2CEB0, 0x2EBE0),
    (0x2EBF0, 0x2EE5D),
    (0x2F800, 0x2FA1D),
    (0x30000, 0x3134A),
    (0x31350, 0x323AF),
)


@cache
def named_set(name: str) -> tuple[tuple[int, int], ...]:
    """The code points of a set, as ranges with both ends included: a category of letters ("Lu",
    "Ll", "Lt", "Lm", "Lo"), a class of categories ("L", "M", "N", "P", "S"), "Nd" (digits),
    "space", "Han" or "word signs" (what `\\w` has besides letters, marks and digits).
    ValueError for another name.
    """
    tables = {"space": _SPACE, "Han": _HAN, "Nd": _DIGITS, "word signs": _WORD_SIGNS}
    if name in tables:
        return tables[name]
    codes = _CODES.get(name, name)
    if not codes or name not in (*_CODES, *"MNPS"):
        raise ValueError(f"characters: found {name!r}, wanted a set that splits name")
    found: list[tuple[int, int]] = []
    for first, last, code in _runs():
        if code not in codes:
            continue
        if found and found[-1][1] == first - 1:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return tuple(found)


@cache
def _runs() -> tuple[tuple[int, int, str], ...]:
    """(first, last, code) of each run of one category."""
    found, at, count = [], 0, 0
    for char in _CATEGORIES:
        if char.isdigit():
            count = 10 * count + int(char)
        elif char != "\n":
            found.append((at, at + (count or 1) - 1, char))
            at, count = at + (count or 1), 0
    return tuple(found)
