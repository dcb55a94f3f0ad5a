"""What people read: terminal tables and lines, Markdown. Returns rich renderables and text; the command line
prints."""
