//! One generation step as pure logic: draft trees, acceptance, sampling. No device, no files, no threads.
