"""From a picture of a run to the rows of its tables. Pure: everything the tables say is decided here."""
