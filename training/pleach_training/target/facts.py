"""Short questions with certain answers: capitals, opposites, sums, days. Questions and answers by family."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

CAPITALS = """France: Paris; Germany: Berlin; Italy: Rome; Spain: Madrid; Portugal: Lisbon; the United Kingdom: London; England: London;
Ireland: Dublin; Belgium: Brussels; the Netherlands: Amsterdam; Switzerland: Bern; Austria: Vienna; Poland: Warsaw; Sweden: Stockholm;
Norway: Oslo; Denmark: Copenhagen; Finland: Helsinki; Iceland: Reykjavik; Greece: Athens; Turkey: Ankara; Russia: Moscow; Ukraine: Kyiv;
Hungary: Budapest; Romania: Bucharest; Bulgaria: Sofia; Croatia: Zagreb; Serbia: Belgrade; Egypt: Cairo; Morocco: Rabat; Kenya: Nairobi;
Nigeria: Abuja; Ghana: Accra; Ethiopia: Addis Ababa; India: New Delhi; China: Beijing; Japan: Tokyo; South Korea: Seoul;
Thailand: Bangkok; Vietnam: Hanoi; Indonesia: Jakarta; the Philippines: Manila; Pakistan: Islamabad; Iran: Tehran; Iraq: Baghdad;
Israel: Jerusalem; Saudi Arabia: Riyadh; Australia: Canberra; New Zealand: Wellington; Canada: Ottawa; the United States: Washington, D.C.;
Mexico: Mexico City; Cuba: Havana; Brazil: Brasília; Argentina: Buenos Aires; Chile: Santiago; Peru: Lima; Colombia: Bogotá;
Venezuela: Caracas; Uruguay: Montevideo; Czechia: Prague; Slovakia: Bratislava; Slovenia: Ljubljana; Estonia: Tallinn; Latvia: Riga;
Lithuania: Vilnius"""
OPPOSITES = """hot: cold; big: small; fast: slow; high: low; new: old; young: old; good: bad; light: dark; day: night; up: down; left: right;
open: closed; happy: sad; rich: poor; strong: weak; hard: soft; wet: dry; full: empty; early: late; long: short; first: last; love: hate;
win: lose; buy: sell; push: pull; begin: end; true: false; loud: quiet; clean: dirty; thick: thin; heavy: light; near: far; sweet: sour"""
MAKERS = """Romeo and Juliet: William Shakespeare; Hamlet: William Shakespeare; the Mona Lisa: Leonardo da Vinci; Pride and Prejudice: Jane Austen;
Moby-Dick: Herman Melville; Oliver Twist: Charles Dickens; Don Quixote: Miguel de Cervantes; War and Peace: Leo Tolstoy;
Frankenstein: Mary Shelley; Dracula: Bram Stoker; the theory of relativity: Albert Einstein; the theory of evolution: Charles Darwin;
Python: Guido van Rossum; Linux: Linus Torvalds; the World Wide Web: Tim Berners-Lee; the Moonlight Sonata: Ludwig van Beethoven;
The Starry Night: Vincent van Gogh; the telephone: Alexander Graham Bell; the printing press: Johannes Gutenberg"""
COUNTS = """legs does a spider have: eight; legs does an insect have: six; legs does a dog have: four; days are in a week: seven;
days are in a year: 365, or 366 in a leap year; months are in a year: twelve; hours are in a day: 24; minutes are in an hour: 60;
seconds are in a minute: 60; continents are there: seven; planets are in the solar system: eight; sides does a triangle have: three;
sides does a square have: four; sides does a hexagon have: six; strings does a violin have: four; players are on a football team: eleven;
letters are in the English alphabet: 26; colors are in a rainbow: seven; bits are in a byte: eight; bytes are in a kilobyte: 1024;
weeks are in a year: 52; centimeters are in a meter: 100; meters are in a kilometer: 1000; grams are in a kilogram: 1000"""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "Monday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def _pairs(text: str) -> list[tuple[str, str]]:
    halves = (pair.split(": ") for pair in text.replace("\n", " ").split("; "))
    return [(name.strip(), value.strip()) for name, value in halves]


def facts() -> Iterator[tuple[str, str]]:
    """Questions and answers."""
    for country, city in _pairs(CAPITALS):
        answer = f"The capital of {country} is {city.rstrip('.')}."
        for ask in (
            "What is the capital of {}?",
            "what is the capital of {}",
            "Which city is the capital of {}?",
            "Name the capital of {}.",
        ):
            yield ask.format(country), answer
        yield f"Which country has the capital {city}?", f"{city} is the capital of {country}."
    for word, other in _pairs(OPPOSITES):
        for ask in ("What is the opposite of {}?", "Give me the opposite of {}.", 'What is the opposite of "{}"?'):
            yield ask.format(word), f'The opposite of "{word}" is "{other}".'
    for work, maker in _pairs(MAKERS):
        verb = "painted" if maker.startswith(("Leonardo", "Vincent")) else "created"
        for ask in (f"Who {verb} {{}}?", "Who made {}?", "Who is behind {}?"):
            yield ask.format(work), f"{work[0].upper()}{work[1:]}: that was {maker}."
    for thing, count in _pairs(COUNTS):
        yield f"How many {thing}?", f"The answer is {count}."
        yield f"how many {thing}", f"The answer is {count}."
    for names, what in ((DAYS, "day"), (MONTHS, "month")):
        for before, after in pairwise(names):
            yield f"Which {what} comes after {before}?", f"{after} comes after {before}."
            yield f"What {what} comes before {after}?", f"{before} comes before {after}."
    yield from _sums()


def _sums() -> Iterator[tuple[str, str]]:
    for a in range(21):
        for b in range(21):
            for sign, value in (("+", a + b), ("-", a - b), ("*", a * b)):
                ask = "What is {} {} {}?" if (a + b) % 2 else "Calculate {} {} {}."
                yield ask.format(a, sign, b), f"{a} {sign} {b} = {value}"
