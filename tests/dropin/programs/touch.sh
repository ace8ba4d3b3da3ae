#!/bin/sh
# Makes a file with the rank's name in the given folder.
echo "creating $RANK"
touch "$1/$RANK"
