"""What a Program is: no torch here."""
