"""What pyproject.toml cannot say: in a wheel `app` is the package fintrader_app, and `configs` lies
in fintrader."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["fintrader", "fintrader.*"]),
        "fintrader_app",
        "fintrader_app.views",
        "fintrader.configs",
    ],
    package_dir={"fintrader_app": "app", "fintrader.configs": "configs"},
    package_data={
        "fintrader": ["py.typed"],
        "fintrader.data": ["tables/*.csv"],
        "fintrader.results": ["defaults.json"],
        "fintrader.configs": ["*.yaml"],
    },
)
