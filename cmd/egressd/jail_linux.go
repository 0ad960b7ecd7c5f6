package main

import "github.com/egressd/egressd/internal/jailinit"

// beginAsJailInit does not return in a process that is to set up a jail.
func beginAsJailInit() { jailinit.Run() }
