#!/usr/bin/env python3
"""Writes co2.csv, the series that `make demo-forecast` forecasts.

It is in the wheel of statsmodels (BSD), whose note says of it: "This is public domain."; run once,
the result is committed:
    python3 -m pip download --no-deps --only-binary :all: statsmodels
    python3 examples/data/make_co2.py statsmodels-*.whl
Weekly means of carbon dioxide in the air at Mauna Loa, Hawaii, in parts per million by volume,
March 1958 to December 2001: C. D. Keeling and T. P. Whorf, Scripps Institution of Oceanography,
"Atmospheric CO2 concentrations derived from flask air samples at sites in the SIO network", 2004,
in Trends: A Compendium of Data on Global Change, Carbon Dioxide Information Analysis Center, Oak
Ridge National Laboratory. Changes: the date in three columns. Weeks without a value stay empty.
"""
import csv
import io
import pathlib
import sys
import zipfile


def main():
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        text = wheel.read("statsmodels/datasets/co2/co2.csv").decode("ascii")
    rows = list(csv.DictReader(io.StringIO(text)))
    lines = ["# Carbon dioxide at Mauna Loa, weekly, ppm; Keeling and Whorf 2004; public domain; "
             "see make_co2.py", "year,month,day,ppm"]
    lines += [f"{int(r['date'][:4])},{int(r['date'][4:6])},{int(r['date'][6:])},{r['co2']}"
              for r in rows]
    path = pathlib.Path(__file__).with_name("co2.csv")
    path.write_text("\n".join(lines) + "\n", encoding="ascii", newline="\n")
    missing = sum(r["co2"] == "" for r in rows)
    print(f"{path}: {len(rows)} weeks, {missing} of them empty, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
