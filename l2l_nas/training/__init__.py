"""Tasks, data, schedules, and the loop that trains an executor's layers."""
