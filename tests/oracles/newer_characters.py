#!/usr/bin/env python3
"""What the Oniguruma inside Hugging Face's tokenizers and Rust's standard library know of characters that Debian's Oniguruma
and ICU do not, as the tables of core/text/unicode/newer_characters.cpp: python newer_characters.py > newer_characters.inc

For every property, tokenizers' wheel and the system's libonig are asked about every code point that may differ. Where they disagree the
code point gets a stand-in: one of as many bytes in UTF-8 which the system's library takes for what the wheel takes the newer
one for. Lower case comes from the wheel's own normalizer and is compared with Python's and ICU's by tokenizers_all_characters.py.
"""
import bisect, ctypes, ctypes.util, sys
from collections import defaultdict

from tokenizers import Regex, normalizers, pre_tokenizers

PROPERTIES = """C Cc Cf Cn Co L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs
Alnum Alpha Blank Cntrl Digit Graph Lower Print Punct Space Upper Word XDigit ASCII Any Assigned
Alphabetic Case_Ignorable Cased Dash Default_Ignorable_Code_Point Deprecated Diacritic Emoji Emoji_Component Emoji_Modifier
Emoji_Modifier_Base Emoji_Presentation Extended_Pictographic Extender Grapheme_Base Grapheme_Extend Hex_Digit ID_Continue ID_Start
Ideographic Join_Control Lowercase Math Quotation_Mark Sentence_Terminal Soft_Dotted Terminal_Punctuation Unified_Ideograph Uppercase
White_Space XID_Continue XID_Start
Adlam Ahom Arabic Armenian Balinese Bamum Bengali Bopomofo Braille Buginese Buhid Canadian_Aboriginal Cham Cherokee Common Coptic Cyrillic
Devanagari Duployan Egyptian_Hieroglyphs Ethiopic Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana
Inherited Javanese Kaithi Kannada Katakana Kayah_Li Khitan_Small_Script Khmer Khojki Kharoshthi Lao Latin Lepcha Limbu Lisu Malayalam
Mandaic Meetei_Mayek Mongolian Myanmar New_Tai_Lue Nko Ogham Ol_Chiki Oriya Phags_Pa Runic Saurashtra Sharada Sinhala Sundanese Syriac Tagalog
Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Vai Yi Unknown""".split()
# Without large blocks that are as old as both libraries, and planes without characters.
OLD = [(0x3400, 0x4DBF), (0x4E00, 0x9FEF), (0xAC00, 0xD7A3), (0xD800, 0xF8FF), (0x17000, 0x187F7), (0x1B170, 0x1B2FB), (0x20000, 0x2A6D6), (0x2A700, 0x2B734),
       (0x2B740, 0x2B81D), (0x2B820, 0x2CEA1), (0x2CEB0, 0x2EBE0), (0x30000, 0x3134A), (0x33500, 0x3FFFF)]
SOME_OLD = range(0x20000, 0x20010)
POINTS = [c for c in [*range(0x80, 0x40000), *range(0xE0000, 0xE0200)] if c in SOME_OLD or not any(first <= c <= last for first, last in OLD)]
TEXT = "".join(map(chr, POINTS))


def known_to_tokenizers(name):
    """Places in TEXT that the wheel's Oniguruma matches."""
    split = pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed")
    matched, last = [], 0
    for _, (begin, end) in split.pre_tokenize_str(TEXT):
        matched.append((last, begin))
        last = end
    matched.append((last, len(POINTS)))
    return [k for begin, end in matched for k in range(begin, end)]


class Region(ctypes.Structure):
    _fields_ = [("allocated", ctypes.c_int), ("num_regs", ctypes.c_int), ("beg", ctypes.POINTER(ctypes.c_int)), ("end", ctypes.POINTER(ctypes.c_int))]


class SystemOniguruma:
    def __init__(self):
        self.lib = ctypes.CDLL(ctypes.util.find_library("onig"))
        self.lib.onig_version.restype = ctypes.c_char_p
        self.lib.onig_region_new.restype = ctypes.POINTER(Region)
        self.utf8 = ctypes.addressof(ctypes.c_char.in_dll(self.lib, "OnigEncodingUTF8"))
        self.syntax = ctypes.c_void_p.in_dll(self.lib, "OnigDefaultSyntax").value
        encodings = (ctypes.c_void_p * 1)(self.utf8)
        self.lib.onig_initialize(encodings, 1)
        self.bytes = TEXT.encode("utf-8")
        self.buffer = ctypes.create_string_buffer(self.bytes, len(self.bytes))
        self.place = {}
        at = 0
        for k, c in enumerate(POINTS):
            self.place[at] = k
            at += 2 if c < 0x800 else 3 if c < 0x10000 else 4
        self.place[at] = len(POINTS)

    def known(self, name):
        regex, pattern = ctypes.c_void_p(), rf"\p{{{name}}}+".encode()
        held = ctypes.create_string_buffer(pattern, len(pattern))
        begin = ctypes.addressof(held)
        code = self.lib.onig_new(ctypes.byref(regex), ctypes.c_void_p(begin), ctypes.c_void_p(begin + len(pattern)), 0, ctypes.c_void_p(self.utf8),
                                 ctypes.c_void_p(self.syntax), None)
        if code:
            return None
        region, matched = self.lib.onig_region_new(), []
        start, end = ctypes.addressof(self.buffer), ctypes.addressof(self.buffer) + len(self.bytes)
        at = 0
        while at < len(self.bytes):
            found = self.lib.onig_search(regex, ctypes.c_void_p(start), ctypes.c_void_p(end), ctypes.c_void_p(start + at), ctypes.c_void_p(end), region, 0)
            if found < 0:
                break
            matched += range(self.place[region.contents.beg[0]], self.place[region.contents.end[0]])
            at = region.contents.end[0]
        return matched


def width(c):
    return 2 if c < 0x800 else 3 if c < 0x10000 else 4


def ranges(pairs):
    """Runs of (code point, value of it) that go on alike: (first, last, value of the first)."""
    made = []
    for c, value, step in pairs:
        if made and made[-1][1] == c - 1 and made[-1][3] == step and value == made[-1][2] + (c - made[-1][0] if step else 0):
            made[-1][1] = c
        else:
            made.append([c, c, value, step])
    return made


def main():
    system = SystemOniguruma()
    old, new = [0] * len(POINTS), [0] * len(POINTS)
    asked = []
    for name in PROPERTIES:
        known = system.known(name)
        try:
            wanted = known_to_tokenizers(name)
        except Exception:
            wanted = None
        if known is None or wanted is None:
            print(f"{name}: {'system' if known is None else 'tokenizers'} does not know it", file=sys.stderr)
            continue
        bit = 1 << len(asked)
        asked.append(name)
        for k in known:
            old[k] |= bit
        for k in wanted:
            new[k] |= bit
        if known != wanted:
            print(f"{name}: {len(set(known) ^ set(wanted))} code points differ", file=sys.stderr)
    # What a stand-in must be alike in: everything, or category, POSIX class and script, or category and class.
    bits = lambda names: sum(1 << i for i, name in enumerate(asked) if name in names)
    classes = set(PROPERTIES[:PROPERTIES.index("ASCII")]) - {"Cn"}
    masks = [bits(asked), bits(classes | set(PROPERTIES[PROPERTIES.index("Adlam"):])), bits(classes)]
    stable = [defaultdict(list) for _ in masks]
    for k, c in enumerate(POINTS):
        for mask, found in zip(masks, stable):
            if old[k] & masks[1] == new[k] & masks[1] and old[k] & mask == new[k] & mask:
                found[width(c), old[k] & mask].append(c)
    pairs, without = [], defaultdict(list)
    for k, c in enumerate(POINTS):
        if old[k] & masks[1] == new[k] & masks[1]:
            continue
        same = next((found[width(c), new[k] & mask] for mask, found in zip(masks, stable) if (width(c), new[k] & mask) in found), None)
        goes_on = pairs and pairs[-1][0] == c - 1 and POINTS[k - 1] == c - 1 and new[k - 1] == new[k]
        if same:  # the nearest, so that ranges of code points in expressions see the same
            at = bisect.bisect(same, c)
            pairs.append((c, pairs[-1][1] if goes_on else min(same[max(0, at - 1):at + 1], key=lambda x: abs(x - c)), False))
        else:
            without[new[k]].append(c)
    print(f"{len(pairs)} with a stand-in, {sum(map(len, without.values()))} without", file=sys.stderr)
    for bits, points in without.items():
        print("without:", [name for i, name in enumerate(asked) if bits >> i & 1], [f"{a:X}-{b:X}" for a, b, *_ in ranges([(p, 0, False) for p in points])], file=sys.stderr)
    print("// stand-ins")
    for first, last, stand_in, _ in ranges(pairs):
        print(f"{{0x{first:X}, 0x{last:X}, 0x{stand_in:X}}},")
    lower = normalizers.Lowercase()
    print("// lower case")
    mapped = []
    for c in POINTS:
        became = lower.normalize_str(chr(c))
        if len(became) == 1 and became != chr(c) and became != chr(c).lower():
            mapped.append((c, ord(became)))
    for c, became in mapped:
        print(f"{{0x{c:X}, 0x{became:X}}},")
    print(f"{len(mapped)} lower case mappings that Python's Unicode does not have; Oniguruma {system.lib.onig_version().decode()}", file=sys.stderr)


if __name__ == "__main__":
    main()
