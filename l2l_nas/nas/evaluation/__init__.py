"""What a trial is trained and scored with, and where: in this process or in several."""
