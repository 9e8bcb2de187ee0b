"""Starts a study's points: as processes of this machine, or as jobs of a SLURM cluster.

``local`` and ``slurm`` are the two ways, behind the contract in ``launcher``; ``progress`` shows
either. Of SLURM's, ``executor`` writes and submits scripts and watches jobs, ``rank`` is what every
task of a job does, ``failure`` finds out why one failed.
"""
