"""Languages by ISO 639-1 code and by English name."""

from __future__ import annotations

from collections.abc import Iterable

from omni.errors import BadRequest
from omni.server.errors import shown

# ISO 639-1, and codes of ISO 639-2 and 639-3 that speech models know.
_TABLE = """
aa afar|ab abkhazian|ae avestan|af afrikaans|ak akan|am amharic|an aragonese|ar arabic|as assamese|av avaric|ay aymara
az azerbaijani|ba bashkir|be belarusian|bg bulgarian|bi bislama|bm bambara|bn bengali|bo tibetan|br breton|bs bosnian
ca catalan|ce chechen|ch chamorro|co corsican|cr cree|cs czech|cu church slavic|cv chuvash|cy welsh|da danish|de german
dv divehi|dz dzongkha|ee ewe|el greek|en english|eo esperanto|es spanish|et estonian|eu basque|fa persian|ff fulah
fi finnish|fj fijian|fo faroese|fr french|fy western frisian|ga irish|gd scottish gaelic|gl galician|gn guarani
gu gujarati|gv manx|ha hausa|he hebrew|hi hindi|ho hiri motu|hr croatian|ht haitian creole|hu hungarian|hy armenian
hz herero|ia interlingua|id indonesian|ie interlingue|ig igbo|ii sichuan yi|ik inupiaq|io ido|is icelandic|it italian
iu inuktitut|ja japanese|jv javanese|ka georgian|kg kongo|ki kikuyu|kj kuanyama|kk kazakh|kl kalaallisut|km khmer
kn kannada|ko korean|kr kanuri|ks kashmiri|ku kurdish|kv komi|kw cornish|ky kyrgyz|la latin|lb luxembourgish|lg ganda
li limburgish|ln lingala|lo lao|lt lithuanian|lu luba-katanga|lv latvian|mg malagasy|mh marshallese|mi maori
mk macedonian|ml malayalam|mn mongolian|mr marathi|ms malay|mt maltese|my burmese|na nauru|nb norwegian bokmal
nd north ndebele|ne nepali|ng ndonga|nl dutch|nn norwegian nynorsk|no norwegian|nr south ndebele|nv navajo|ny chichewa
oc occitan|oj ojibwa|om oromo|or odia|os ossetian|pa punjabi|pi pali|pl polish|ps pashto|pt portuguese|qu quechua
rm romansh|rn rundi|ro romanian|ru russian|rw kinyarwanda|sa sanskrit|sc sardinian|sd sindhi|se northern sami|sg sango
si sinhala|sk slovak|sl slovenian|sm samoan|sn shona|so somali|sq albanian|sr serbian|ss swati|st southern sotho
su sundanese|sv swedish|sw swahili|ta tamil|te telugu|tg tajik|th thai|ti tigrinya|tk turkmen|tl tagalog|tn tswana
to tongan|tr turkish|ts tsonga|tt tatar|tw twi|ty tahitian|ug uyghur|uk ukrainian|ur urdu|uz uzbek|ve venda
vi vietnamese|vo volapuk|wa walloon|wo wolof|xh xhosa|yi yiddish|yo yoruba|za zhuang|zh chinese|zu zulu
yue cantonese|haw hawaiian|fil filipino
"""
_NAMES: dict[str, str] = {}
for _entry in _TABLE.replace("\n", "|").strip("|").split("|"):
    _code, _, _name = _entry.partition(" ")
    _NAMES[_code] = _name
_CODES = {name: code for code, name in _NAMES.items()} | {
    "castilian": "es",
    "farsi": "fa",
    "flemish": "nl",
    "gaelic": "gd",
    "haitian": "ht",
    "mandarin": "zh",
    "moldovan": "ro",
    "myanmar": "my",
    "norwegian bokmål": "nb",
    "nynorsk": "nn",
    "panjabi": "pa",
    "pushto": "ps",
    "sinhalese": "si",
    "valencian": "ca",
    "letzeburgesch": "lb",
    "moldavian": "ro",
    # Codes of ISO 639-1 that were withdrawn and are still sent.
    "in": "id",
    "iw": "he",
    "ji": "yi",
    "jw": "jv",
    "mo": "ro",
}

_SAME = {"fil": "tl", "tl": "fil"}
"""Filipino is Tagalog by the name of the state; models know it by either."""


def name_of(code: str | None) -> str:
    """The English name, lower case as OpenAI writes it; an unknown code as it is, None as ``unknown``."""
    return "unknown" if code is None else _NAMES.get(code, code)


def code_of(language: str, supported: Iterable[str] | None, param: str = "language") -> str:
    """The code for what a client wrote: ``en``, ``EN``, ``en-US``, ``en_us`` or ``English``; for ``zh-yue`` it is
    ``yue`` where that is known.

    ``supported`` are the recipe's own codes (None: any ISO 639-1 code); they need not be ISO's.

    Raises:
        BadRequest: no such language, or one that the model does not have; lists those it has.
    """
    text = language.strip().casefold().replace("_", "-")
    known = None if supported is None else {code.casefold(): code for code in supported}
    first, *more = text.split("-")
    # A language of its own within a larger one (BCP 47: an extended language subtag).
    narrower = [part for part in more[:1] if len(part) == 3]
    named = [code for part in (text, *narrower, first) for code in (part, _CODES.get(part, part))]
    for candidate in (*named, *(_SAME[code] for code in named if code in _SAME)):
        if known is None and candidate in _NAMES:
            return candidate
        if known is not None and candidate in known:
            return known[candidate]
    if known is None:
        raise BadRequest(
            f"{shown(language)} is not a language; give an ISO 639-1 code such as 'en', or an English name",
            param=param,
        )
    raise BadRequest(
        f"the model does not know the language {shown(language)}; it knows: {', '.join(known.values())}",
        param=param,
        code="unsupported_language",
    )
