"""What people see: terminal pages, reports, pictures, JSON."""
