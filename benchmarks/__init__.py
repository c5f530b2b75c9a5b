"""Speed of Evenfed as ratios, measured in one run on one machine: `make bench`."""
