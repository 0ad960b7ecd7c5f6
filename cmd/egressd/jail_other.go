//go:build !linux

package main

func beginAsJailInit() {}
