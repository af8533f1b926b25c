"""Small Python functions by the hundred: families of tasks that differ in a word and a line.

A family is a way to ask, a name, the function's body and a remark, with the words that fill them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """Ways to ask, the answer, and what a programmer says after the code."""

    asks: tuple[str, ...]
    answer: str
    remark: str


# From, to, and the factor between them.
UNITS = (
    ("kilometers", "miles", "0.621371"), ("miles", "kilometers", "1.609344"), ("meters", "feet", "3.28084"),
    ("feet", "meters", "0.3048"), ("inches", "centimeters", "2.54"), ("centimeters", "inches", "0.393701"),
    ("meters", "centimeters", "100"), ("kilometers", "meters", "1000"), ("kilograms", "pounds", "2.20462"),
    ("pounds", "kilograms", "0.453592"), ("kilograms", "grams", "1000"), ("grams", "ounces", "0.035274"),
    ("ounces", "grams", "28.3495"), ("liters", "gallons", "0.264172"), ("gallons", "liters", "3.78541"),
    ("liters", "milliliters", "1000"), ("hours", "minutes", "60"), ("hours", "seconds", "3600"), ("minutes", "seconds", "60"),
    ("days", "hours", "24"), ("weeks", "days", "7"), ("years", "days", "365"), ("feet", "inches", "12"), ("yards", "feet", "3"),
    ("kilobytes", "bytes", "1024"), ("megabytes", "kilobytes", "1024"), ("gigabytes", "megabytes", "1024"),
    ("dollars", "cents", "100"), ("acres", "hectares", "0.404686"), ("knots", "kilometers_per_hour", "1.852"),
)  # fmt: skip
# Shape, what is asked, arguments, formula, whether it needs `math`.
SHAPES = (
    ("rectangle", "area", "width, height", "width * height"), ("rectangle", "perimeter", "width, height", "2 * (width + height)"),
    ("square", "area", "side", "side ** 2"), ("square", "perimeter", "side", "4 * side"),
    ("triangle", "area", "base, height", "base * height / 2"), ("triangle", "perimeter", "a, b, c", "a + b + c"),
    ("circle", "circumference", "radius", "2 * math.pi * radius"), ("circle", "diameter", "radius", "2 * radius"),
    ("circle", "area", "radius", "math.pi * radius ** 2"), ("cube", "volume", "side", "side ** 3"),
    ("cube", "surface area", "side", "6 * side ** 2"), ("box", "volume", "length, width, height", "length * width * height"),
    ("cylinder", "volume", "radius, height", "math.pi * radius ** 2 * height"), ("cone", "volume", "radius, height", "math.pi * radius ** 2 * height / 3"),
    ("sphere", "volume", "radius", "4 / 3 * math.pi * radius ** 3"), ("sphere", "surface area", "radius", "4 * math.pi * radius ** 2"),
    ("trapezoid", "area", "a, b, height", "(a + b) * height / 2"), ("parallelogram", "area", "base, height", "base * height"),
    ("right triangle", "hypotenuse", "a, b", "math.sqrt(a ** 2 + b ** 2)"),
)  # fmt: skip
# Which numbers, and the test that keeps them.
NUMBERS = (
    ("even numbers", "n % 2 == 0"), ("odd numbers", "n % 2 != 0"), ("positive numbers", "n > 0"), ("negative numbers", "n < 0"),
    ("numbers that are not zero", "n != 0"), ("multiples of three", "n % 3 == 0"), ("multiples of five", "n % 5 == 0"),
    ("numbers greater than ten", "n > 10"), ("numbers less than 100", "n < 100"), ("two-digit numbers", "10 <= n <= 99"),
)  # fmt: skip
# What to do with the kept numbers: asks, name, expression over KEPT.
FOLDS = (
    ("find the {} in a list", "find", "[{kept}]", "list"), ("sum the {} in a list", "sum", "sum({kept})", "sum"),
    ("count the {} in a list", "count", "sum(1 for n in numbers if {test})", "number"),
    ("multiply the {} in a list", "multiply", "math.prod({kept})", "product"),
    ("find the largest of the {} in a list", "largest", "max(({kept}), default=None)", "largest"),
    ("find the smallest of the {} in a list", "smallest", "min(({kept}), default=None)", "smallest"),
)  # fmt: skip
# What is counted, removed or kept in a text, and its test.
LETTERS = (
    ("vowels", 'c.lower() in "aeiou"'), ("consonants", 'c.isalpha() and c.lower() not in "aeiou"'), ("digits", "c.isdigit()"),
    ("letters", "c.isalpha()"), ("spaces", "c.isspace()"), ("uppercase letters", "c.isupper()"), ("lowercase letters", "c.islower()"),
    ("punctuation marks", "c in string.punctuation"), ("commas", 'c == ","'), ("special characters", "not c.isalnum() and not c.isspace()"),
)  # fmt: skip
# How every element changes: ask, name, list's name, element, expression.
CHANGES = (
    ("double every number in a list", "double_all", "numbers", "n", "2 * n"), ("triple every number in a list", "triple_all", "numbers", "n", "3 * n"),
    ("cube the numbers in a list", "cube_all", "numbers", "n", "n ** 3"), ("halve every number in a list", "halve_all", "numbers", "n", "n / 2"),
    ("negate every number in a list", "negate_all", "numbers", "n", "-n"), ("add one to every number in a list", "increment_all", "numbers", "n", "n + 1"),
    ("take the absolute value of every number in a list", "absolute_all", "numbers", "n", "abs(n)"),
    ("round every number in a list", "round_all", "numbers", "n", "round(n)"), ("convert a list of strings to integers", "to_integers", "strings", "s", "int(s)"),
    ("convert a list of integers to strings", "to_strings", "numbers", "n", "str(n)"), ("convert a list of words to uppercase", "upper_all", "words", "word", "word.upper()"),
    ("convert a list of words to lowercase", "lower_all", "words", "word", "word.lower()"), ("capitalize every word in a list", "capitalize_all", "words", "word", "word.capitalize()"),
    ("reverse every word in a list", "reverse_all", "words", "word", "word[::-1]"), ("strip the spaces from every string in a list", "strip_all", "strings", "s", "s.strip()"),
    ("get the length of every word in a list", "word_lengths", "words", "word", "len(word)"), ("get the first letter of every word in a list", "first_letters", "words", "word", "word[0]"),
    ("get the last element of every list in a list", "last_elements", "lists", "row", "row[-1]"), ("get the first element of every tuple in a list", "first_elements", "pairs", "pair", "pair[0]"),
)  # fmt: skip
# What is sorted by what: ask, name, argument, key.
ORDERS = (
    ("sort a list of words by length", "sort_by_length", "words", "len"), ("sort a list of words by their last letter", "sort_by_last_letter", "words", "lambda word: word[-1]"),
    ("sort a list of words without regard to case", "sort_ignoring_case", "words", "str.lower"), ("sort a list of tuples by the second element", "sort_by_second", "pairs", "lambda pair: pair[1]"),
    ("sort a list of tuples by the first element", "sort_by_first", "pairs", "lambda pair: pair[0]"), ("sort a list of dictionaries by name", "sort_by_name", "records", 'lambda record: record["name"]'),
    ("sort a list of dictionaries by age", "sort_by_age", "people", 'lambda person: person["age"]'), ("sort a list of dictionaries by price", "sort_by_price", "items", 'lambda item: item["price"]'),
    ("sort numbers by their absolute value", "sort_by_absolute_value", "numbers", "abs"), ("sort numbers by their last digit", "sort_by_last_digit", "numbers", "lambda n: n % 10"),
    ("sort a list of lists by length", "sort_by_size", "lists", "len"), ("sort a list of strings by the number of vowels", "sort_by_vowels", "words", 'lambda word: sum(c in "aeiou" for c in word)'),
)  # fmt: skip
# The first n of what: name, and the nth by i counting from 0.
SEQUENCES = (
    ("even numbers", "2 * i"), ("odd numbers", "2 * i + 1"), ("square numbers", "(i + 1) ** 2"), ("cube numbers", "(i + 1) ** 3"),
    ("powers of two", "2 ** i"), ("powers of three", "3 ** i"), ("triangular numbers", "(i + 1) * (i + 2) // 2"), ("multiples of five", "5 * (i + 1)"),
    ("multiples of seven", "7 * (i + 1)"), ("multiples of ten", "10 * (i + 1)"), ("natural numbers", "i + 1"), ("negative numbers", "-(i + 1)"),
)  # fmt: skip
# What a number or text may be: ask, name, argument, test.
CHECKS = (
    ("is divisible by {}", "is_divisible_by_{}", "n", "n % {} == 0", ("2", "3", "4", "5", "6", "7", "9", "10", "11")),
    ("is greater than {}", "is_greater_than_{}", "n", "n > {}", ("0", "1", "10", "50", "100", "1000")),
    ("is less than {}", "is_less_than_{}", "n", "n < {}", ("0", "1", "10", "50", "100", "1000")),
)  # fmt: skip
# Classes that hold a few fields: name, fields, one method, its arguments and body.
RECORDS = (
    ("Rectangle", "width, height", "area", "", "return self.width * self.height"), ("Circle", "radius", "area", "", "return 3.14159 * self.radius ** 2"),
    ("Person", "name, age", "introduce", "", 'return f"My name is {self.name} and I am {self.age} years old."'),
    ("Student", "name, grades", "average", "", "return sum(self.grades) / len(self.grades)"), ("Car", "brand, speed", "accelerate", "amount", "self.speed += amount"),
    ("Book", "title, author", "describe", "", 'return f"{self.title} by {self.author}"'), ("BankAccount", "owner, balance", "deposit", "amount", "self.balance += amount"),
    ("Dog", "name, breed", "bark", "", 'return f"{self.name} says woof!"'), ("Cat", "name, color", "meow", "", 'return f"{self.name} says meow!"'),
    ("Point", "x, y", "distance_to_origin", "", "return (self.x ** 2 + self.y ** 2) ** 0.5"), ("Employee", "name, salary", "raise_salary", "percent", "self.salary *= 1 + percent / 100"),
    ("Product", "name, price", "discount", "percent", "self.price *= 1 - percent / 100"), ("Movie", "title, year", "describe", "", 'return f"{self.title} ({self.year})"'),
    ("Counter", "count", "increment", "", "self.count += 1"), ("Square", "side", "perimeter", "", "return 4 * self.side"),
    ("Song", "title, artist", "describe", "", 'return f"{self.title} by {self.artist}"'), ("Timer", "seconds", "add", "seconds", "self.seconds += seconds"),
)  # fmt: skip


def function(name: str, arguments: str, says: str, *lines: str, imports: str = "") -> str:
    """The text of a function with a docstring."""
    head = f"import {imports}\n\n\n" if imports else ""
    body = "\n".join(f"    {line}" for line in lines)
    return f'{head}def {name}({arguments}):\n    """{says}"""\n{body}'


def entries() -> Iterator[Entry]:
    """Every member of every family."""
    for family in (_units, _shapes, _folds, _letters, _changes, _orders, _sequences, _checks, _records):
        yield from family()


def _units() -> Iterator[Entry]:
    for old, new, factor in UNITS:
        words = new.replace("_", " ")
        code = function(f"{old}_to_{new}", old, f"Convert {old} to {words}.", f"return {old} * {factor}")
        yield Entry(
            (f"convert {old} to {words}",), code, f"One of the {old} is {factor} {words}, so it multiplies by {factor}."
        )


def _shapes() -> Iterator[Entry]:
    for shape, what, arguments, formula in SHAPES:
        name = f"{shape}_{what}".replace(" ", "_")
        code = function(
            name, arguments, f"Return the {what} of a {shape}.", f"return {formula}", imports="math" * ("math" in formula)
        )
        asks = (f"compute the {what} of a {shape}", f"calculate the {what} of a {shape}", f"find the {what} of a {shape}")
        yield Entry(asks, code, f"It uses the formula `{formula}`.")


def _folds() -> Iterator[Entry]:
    for which, test in NUMBERS:
        for ask, name, expression, result in FOLDS:
            value = expression.format(kept=f"n for n in numbers if {test}", test=test)
            says = ask.format(which).capitalize() + "."
            noun = "_".join(which.replace("-", "_").split()[:4])
            code = function(f"{name}_{noun}", "numbers", says, f"return {value}", imports="math" * ("math" in value))
            yield Entry(
                (ask.format(which),),
                code,
                f"It keeps the {which} and returns their {result}."
                if result != "number"
                else f"It counts one for each of the {which}.",
            )


def _letters() -> Iterator[Entry]:
    for which, test in LETTERS:
        noun, imports = which.replace(" ", "_"), "string" * ("string." in test)
        count = function(
            f"count_{noun}",
            "text",
            f"Return the number of {which} in the text.",
            f"return sum(1 for c in text if {test})",
            imports=imports,
        )
        yield Entry(
            (f"count the {which} in a string", f"count the number of {which} in a string"),
            count,
            "It goes through the characters and counts those that pass the test.",
        )
        remove = function(
            f"remove_{noun}",
            "text",
            f"Return the text without {which}.",
            f'return "".join(c for c in text if not ({test}))',
            imports=imports,
        )
        yield Entry(
            (f"remove the {which} from a string", f"remove all {which} from a string"),
            remove,
            "It joins the characters that are left.",
        )
        keep = function(
            f"keep_{noun}",
            "text",
            f"Return only the {which} of the text.",
            f'return "".join(c for c in text if {test})',
            imports=imports,
        )
        yield Entry(
            (f"extract the {which} from a string", f"get all {which} of a string"),
            keep,
            "It joins the characters that pass the test.",
        )
        loop = function(
            f"has_{noun}",
            "text",
            f"Return True if the text has {which}.",
            f"return any({test} for c in text)",
            imports=imports,
        )
        yield Entry(
            (f"check if a string contains {which}", f"check whether a string has {which}"),
            loop,
            "The call `any` stops at the first character that passes the test.",
        )


def _changes() -> Iterator[Entry]:
    for ask, name, listed, element, expression in CHANGES:
        code = function(name, listed, ask.capitalize() + ".", f"return [{expression} for {element} in {listed}]")
        yield Entry((ask,), code, "A list comprehension builds the new list and leaves the old one as it is.")


def _orders() -> Iterator[Entry]:
    for ask, name, listed, key in ORDERS:
        yield Entry(
            (ask,),
            function(name, listed, ask.capitalize() + ".", f"return sorted({listed}, key={key})"),
            "The `key` tells `sorted` what to compare.",
        )
        code = function(
            f"{name}_descending",
            listed,
            f"{ask.capitalize()}, largest first.",
            f"return sorted({listed}, key={key}, reverse=True)",
        )
        yield Entry((f"{ask} in descending order",), code, "With `reverse=True` the largest comes first.")


def _sequences() -> Iterator[Entry]:
    for which, formula in SEQUENCES:
        noun = which.replace(" ", "_")
        code = function(f"first_{noun}", "n", f"Return the first n {which}.", f"return [{formula} for i in range(n)]")
        yield Entry(
            (f"list the first n {which}", f"generate the first n {which}"), code, "The index `i` runs from 0 to n - 1."
        )
        code = function(f"print_{noun}", "n", f"Print the first n {which}.", "for i in range(n):", f"    print({formula})")
        yield Entry((f"print the first n {which}",), code, "It prints one number in each line.")
        code = function(
            f"sum_of_{noun}",
            "n",
            f"Return the sum of the first n {which}.",
            "total = 0",
            "for i in range(n):",
            f"    total += {formula}",
            "return total",
        )
        yield Entry(
            (f"sum the first n {which}", f"compute the sum of the first n {which}"), code, "It adds them up one by one."
        )


def _checks() -> Iterator[Entry]:
    for says, name, argument, test, values in CHECKS:
        for value in values:
            what = says.format(value)
            code = function(
                name.format(value), argument, f"Return True if the number {what}.", f"return {test.format(value)}"
            )
            yield Entry(
                (f"check if a number {what}", f"check whether a number {what}"),
                code,
                "The comparison is already True or False, so it is returned as it is.",
            )


def _records() -> Iterator[Entry]:
    for name, fields, method, arguments, body in RECORDS:
        sets = "\n".join(f"        self.{field} = {field}" for field in fields.split(", "))
        given = f"self, {arguments}" if arguments else "self"
        code = f"class {name}:\n    def __init__(self, {fields}):\n{sets}\n\n    def {method}({given}):\n        {body}"
        spoken = fields.replace(", ", " and ")
        asks = (f"write a {name} class", f"define a class {name} with {spoken}", f"implement a {name} class")
        yield Entry(asks, code, f"An object keeps its {spoken} and has a method `{method}`.")
