"""What all experiments share: settings and draws, conventions of text and code, runner, pictures, report."""
