"""The commands of svcctl: options and output. A group is loaded when it is used."""
